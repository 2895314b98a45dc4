"""The Lightning module: cross-entropy of a Transformer on its targets. It knows no scheme."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from harness.data.arrays import IGNORE
from harness.data.batches import Batch
from harness.data.ranks import ALONE, Ranks
from harness.model.transformer import Transformer
from harness.training.config import Optim
from harness.training.optim import optimizer, rate_factor


class StepLoss(NamedTuple):
    """Nats per token over the targets of a step's batches on all ranks, unsmoothed."""

    loss: float
    excess: float  # over the better of two predictors without input, on the same targets
    width: float  # by which the worse of them is above that


class LanguageModule(L.LightningModule):
    """Trains on label-smoothed cross-entropy; `said` gathers the unsmoothed loss of the present
    step. Batches of a step count by their targets: its gradient is the mean over all of these.

    Letters: B sequences, T targets, V vocabulary.
    """

    def __init__(self, model: Transformer, options: Optim, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.model, self.options, self.ranks = model, options, ranks
        # (sum of losses, targets, the plateau's sums of losses) of each batch of a step
        self.said: list[tuple[Tensor, Tensor, tuple[float, float]]] = []

    def training_step(self, batch: Batch, index: int) -> Tensor:
        logits_BTV, targets_BT = self.model(*batch.model_inputs), batch.targets_BT
        loss = cross_entropy(logits_BTV, targets_BT)
        targets = (targets_BT != IGNORE).sum()
        self.said.append((loss.detach() * targets, targets, batch.plateau))
        if self.options.label_smoothing:
            loss = cross_entropy(logits_BTV, targets_BT, self.options.label_smoothing)
        return loss if batch.weight == 1.0 else batch.weight * loss

    def take_step_loss(self) -> StepLoss:
        """The loss of the step's batches; the next step begins."""
        said, self.said = self.said, []
        return self._over_ranks(said)

    @torch.no_grad()
    def loss_after(self, batch: Batch) -> StepLoss:
        """The loss of a batch with the present weights, in evaluation mode; of several ranks, over
        the batches of all of them."""
        training = self.model.training
        self.model.eval()
        with self.trainer.precision_plugin.forward_context():
            loss = cross_entropy(self.model(*batch.model_inputs), batch.targets_BT)
        self.model.train(training)
        targets = (batch.targets_BT != IGNORE).sum()
        return self._over_ranks([(loss * targets, targets, batch.plateau)])

    def _over_ranks(self, said: list[tuple[Tensor, Tensor, tuple[float, float]]]) -> StepLoss:
        sums, counts, plateaus = zip(*said, strict=True)
        nats, targets = (self.ranks.summed(torch.stack(x).sum()) for x in (sums, counts))
        blind = self.ranks.summed(torch.tensor(plateaus, dtype=torch.float64).sum(0))
        loss, (low, high) = float(nats / targets), (blind / int(targets)).tolist()
        return StepLoss(loss, loss - low, high - low)

    def configure_optimizers(self) -> dict[str, Any]:
        # Mixed precision does not clip what is stepped by one fused kernel, nor does a scaler.
        clipped = self.options.clip > 0 or self.trainer.precision == "16-mixed"
        fused = self.trainer.precision == "32-true" or not clipped
        parameters, factors = self.model.parameters(), self.model.factors()
        steps = optimizer(parameters, self.options, fused=fused, factors=factors)
        schedule = LambdaLR(steps, lambda step: rate_factor(self.options, step))
        return {"optimizer": steps, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def evaluate(
        self, batches: list[Batch], between: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Loss (nats per token), accuracy, and for an encoder-decoder the source gain: by how much
        the loss rises when each target is given its neighbour's source; a target alone in its batch
        has none and does not count. Those of a named group of batches have its name at the end, as
        in loss_low. `between` is called before each batch, and may end it all by an exception."""
        training = self.model.training
        self.model.eval()
        # by group: targets, and sums of loss and of correct targets; of batches whose sources can
        # be permuted: targets, and sums of loss with their own sources and with permuted ones
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(6, dtype=torch.float64))
        with self.trainer.precision_plugin.forward_context():
            for batch in (b.to(self.device) for b in batches):
                between()
                count = batch.targets
                logits_BTV = self.model(*batch.model_inputs)
                loss = cross_entropy(logits_BTV, batch.targets_BT)
                correct = (logits_BTV.argmax(-1) == batch.targets_BT).sum()
                nats = float(loss) * count
                numbers = [count, nats, float(correct), 0, 0, 0]
                if batch.source_BS is not None and len(batch.source_BS) > 1:
                    numbers[3:] = count, nats, float(self._permuted_loss(batch)) * count
                for group in {"", batch.group}:
                    sums[group] += torch.tensor(numbers, dtype=torch.float64)
        self.model.train(training)
        result: dict[str, float] = {}
        for group in sorted(sums):
            count, nats, correct, paired, own, permuted = sums[group].tolist()
            found = {"loss": nats / count, "accuracy": correct / count}
            if paired:
                found["source_gain"] = permuted / paired - own / paired
            result |= {f"{name}_{group}" if group else name: x for name, x in found.items()}
        return result

    def _permuted_loss(self, batch: Batch) -> Tensor:
        roll = lambda x: None if x is None else x.roll(1, dims=0)  # noqa: E731
        moved = batch._replace(
            source_BS=roll(batch.source_BS), source_mask_BS=roll(batch.source_mask_BS)
        )
        return cross_entropy(self.model(*moved.model_inputs), batch.targets_BT)


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over targets that count, in nats, computed in float32."""
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        targets_BT.flatten(),
        ignore_index=IGNORE,
        label_smoothing=smoothing,
    )
