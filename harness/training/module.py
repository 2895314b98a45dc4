"""The Lightning module: cross-entropy of a Transformer on its targets. It knows no scheme."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

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


class LanguageModule(L.LightningModule):
    """Trains on label-smoothed cross-entropy; `nats` sums the unsmoothed loss of the present step.

    Letters: B sequences, T targets, V vocabulary.
    """

    def __init__(self, model: Transformer, options: Optim, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.model, self.options, self.ranks = model, options, ranks
        # (sum of losses, targets) of each batch of a step
        self.nats: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: Batch, index: int) -> Tensor:
        logits_BTV, targets_BT = self.model(*batch.model_inputs), batch.targets_BT
        loss = cross_entropy(logits_BTV, targets_BT)
        targets = (targets_BT != IGNORE).sum()
        self.nats.append((loss.detach() * targets, targets))
        if self.options.label_smoothing == 0.0:
            return loss
        return cross_entropy(logits_BTV, targets_BT, self.options.label_smoothing)

    def take_step_loss(self) -> float:
        """Mean loss over the targets of a step's batches on all ranks, nats per token; the next
        step begins."""
        sums, counts = zip(*self.nats, strict=True)
        self.nats.clear()
        nats, targets = (self.ranks.summed(torch.stack(x).sum()) for x in (sums, counts))
        return float(nats / targets)

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
