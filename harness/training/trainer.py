"""Lightning's trainer as a run needs it: it trains, on one process or on several."""

import logging
import signal
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

from harness.data.ranks import ALONE, Ranks
from harness.training.config import Config

PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}


def trainer_for(
    config: Config, callbacks: list[L.Callback], log_every: int, ranks: Ranks = ALONE
) -> L.Trainer:
    """A trainer that only trains: validation, logging and divergence are the callbacks' affair."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Where a scheduler such as Slurm has left its variables, Lightning would count on processes of
    # that; those of torchrun, which there are, it finds first.
    spread: dict[str, Any] = {"devices": 1, "plugins": [LightningEnvironment()]}
    if ranks.count > 1:
        spread = {
            # An encoder that no decoder reads has no gradients, for which DDP would wait. In every
            # other model each parameter has one, and looking for those without costs a pass.
            "strategy": DDPStrategy(find_unused_parameters=not config.model.cross_attention),
            "devices": ranks.count // ranks.nodes,
            "num_nodes": ranks.nodes,
            "use_distributed_sampler": False,  # the batches know their ranks
        }
        callbacks = [*callbacks, OwnSignals()]
    return L.Trainer(
        # Lightning's "auto" would take Apple's MPS, which has no float64 for the probes.
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        **spread,
        precision=PRECISIONS[config.train.precision],
        max_steps=max(1, config.train.steps),
        max_epochs=-1,
        accumulate_grad_batches=config.train.accumulation // ranks.count,
        gradient_clip_val=config.optim.clip or None,
        callbacks=callbacks,
        log_every_n_steps=log_every,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class OwnSignals(L.Callback):
    """Keeps what SIGTERM did before: Lightning's own handler broadcasts to the other ranks from
    wherever the signal meets it, and so breaks into a reduction that is under way."""

    def __init__(self) -> None:
        self.handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        signal.signal(signal.SIGTERM, self.handler)
