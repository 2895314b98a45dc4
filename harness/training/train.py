"""train(config) -> the run's record and its curves. What the harness does everything else for."""

import math
import statistics
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from torch.utils.data import DataLoader

from harness.data import tasks
from harness.data.arrays import Task, Validation
from harness.data.baselines import Baselines, baselines
from harness.data.batches import TrainingBatches, as_batch
from harness.data.ranks import ALONE, Ranks
from harness.data.translation.task import Parallel
from harness.data.translation.translations import Translated
from harness.model.initialise import calibrate, initialise
from harness.model.transformer import Transformer
from harness.training.config import PROTOCOL, Config
from harness.training.curves import Curves
from harness.training.module import LanguageModule
from harness.training.outcome import Detector, Outcome
from harness.training.probes import (
    Clock,
    CoefficientProbe,
    GradientProbe,
    InitProbe,
    Log,
    SkipProbe,
    StateProbe,
    StreamProbe,
    TranslationProbe,
    ValidationProbe,
    WeightAverage,
)
from harness.training.trainer import trainer_for


class Trained(NamedTuple):
    """The columns of runs.csv that training decides, all series, and what it translated."""

    record: dict[str, Any]
    curves: Curves
    translations: Sequence[Translated] = ()


def build(config: Config, vocabularies: tuple[int, int]) -> Transformer:
    """The config's model with its initial weights."""
    model, rule, options = config.model, config.rule, config.scheme_options
    return initialise(
        Transformer(
            lambda at: rule.wire(at, options),
            lambda at: rule.stack(at, options),
            encoders=model.encoders,
            decoders=model.decoders,
            width=model.width,
            heads=model.heads,
            ffn=model.ffn,
            norm=model.norm,
            dropout=model.dropout,
            vocabularies=vocabularies,
            cross_attention=model.cross_attention,
            qk_norm=model.qk_norm,
        ),
        config.seed,
    )


def train(
    config: Config,
    data: Path,
    log: Log | None = None,
    *,
    log_every: int = 50,
    ranks: Ranks = ALONE,
) -> Trained:
    """Trains one cell and measures it; the numbers depend on the config alone.

    Of several ranks, whose count divides `train.accumulation`, each computes its share of a step's
    batches: up to rounding and the draws of dropout, the numbers are those of one process. Each
    validates and translates for itself, without a word to the others, and returns the whole record.

    A run of no steps takes one at rate zero, so that all is measured on the model as it was drawn.
    `log` is told each step's scalars as they come. Divergence and stalling are outcomes, no errors.
    """
    log = log or (lambda step, scalars: None)
    task, known = _task(config, data)
    # Dropout; apart by a large prime, for CPUs read no more than 32 bits.
    torch.manual_seed(config.seed + 1_000_003 * ranks.rank)
    model = build(config, task.vocabularies)
    calibrate(model, *as_batch(task.train(config.seed, 0, config.train.batch)).model_inputs)
    drawn = config.train.steps == 0
    rates = config.optim.model_copy(update={"lr": 0.0}) if drawn else config.optim
    module = LanguageModule(model, rates, ranks)
    valid = [as_batch(arrays) for arrays in task.valid(config.train.batch)]
    curves = Curves()
    detector = Detector(known.loss, scaled=config.train.precision == "16-mixed")
    clock, stream, initial = Clock(), StreamProbe(), InitProbe()
    every = config.train.validate_every
    states = StateProbe(valid[0], config.probe.update_steps, every, curves, log)
    validation = ValidationProbe(valid, every, detector, curves, log)
    skips = SkipProbe(validation, curves)
    probes: list[L.Callback] = [clock, GradientProbe(detector, curves, log), stream, states]
    probes.append(CoefficientProbe(curves, log))
    if config.train.average > 1:
        probes.append(WeightAverage(config.train.average, every))
    probes += [validation, *[initial] * drawn, *[skips] * config.probe.skip_blocks]
    translation = None
    if isinstance(task, Parallel) and not drawn and config.train.held_out == "valid":
        translation = TranslationProbe(task, validation, log)  # a test split chooses no value
        probes.append(translation)
    batches = Counted(
        task,
        config.seed,
        config.train.batch,
        max(1, config.train.steps),
        accumulation=config.train.accumulation,
        ranks=ranks,
        blind=known.blind,
        smoothing=config.optim.label_smoothing,
    )
    _reset_peak_memory()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # advice on settings that are chosen
        trainer = trainer_for(config, probes, log_every, ranks)
        trainer.fit(module, DataLoader(batches, batch_size=None))
    outcome = _outcome(detector, validation, drawn)
    if outcome["outcome"] != "diverged":
        scores = translation.scores if translation else {}
        if skips.idle is not None:
            scores |= {"idle_blocks": skips.idle, "idle_cost": skips.idle_cost}
        outcome |= {f"metric_{name}": value for name, value in scores.items()}
    tokens, flops = batches.cost(model)
    record = {
        **outcome,
        "baseline_loss": known.loss,
        "reference_loss": known.reference,
        **_gradient_columns(curves, stream, config),
        **(_initial_columns(curves, initial) if drawn else {}),
        "update_norm": None if drawn else states.update_norm,
        "steps": 0 if drawn else trainer.global_step,
        "tokens": tokens,
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": flops,
        "seconds": clock.seconds,
        "peak_memory_mb": _peak_memory(),
        "spikes": detector.spikes,
        "skipped_steps": detector.skipped,
        **({"bleu_signature": translation.signature} if translation else {}),
        "data_sha": task.sha,
        "wiring_sha": config.wiring_sha,
        "protocol": PROTOCOL,
        "torch": torch.__version__,
        "device": _device(trainer.strategy.root_device),
        "precision": trainer.precision,
        "threads": torch.get_num_threads(),
        "finished": now(),
    }
    return Trained(record, curves, translation.translations if translation else ())


class Counted(TrainingBatches):
    """Training batches that remember their shapes, for the cost of a run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.targets, self.shapes = 0, dict[tuple[int, int, int], int]()

    def __getitem__(self, index: int):
        batch = super().__getitem__(index)
        self.targets += batch.targets
        rows, length = batch.inputs_BT.shape
        shape = rows, length, 0 if batch.source_BS is None else batch.source_BS.shape[1]
        self.shapes[shape] = self.shapes.get(shape, 0) + 1
        return batch

    def cost(self, model: Transformer) -> tuple[int, int]:
        """(targets, operations) of all ranks; a backward pass counts as two forward passes."""
        targets, flops = 0, 0
        for own, shapes in self.ranks.gathered((self.targets, self.shapes)):
            targets += own
            flops += sum(3 * n * rows * model.flops(t, s) for (rows, t, s), n in shapes.items())
        return targets, flops


def _outcome(detector: Detector, validation: ValidationProbe, drawn: bool) -> dict[str, Any]:
    final = validation.final
    found = detector.outcome(final.get("loss", math.nan))
    if detector.verdict:
        return found._asdict()
    if drawn:  # whatever luck its one batch had
        found = Outcome("stalled", "no_progress")
    return {
        **found._asdict(),
        "final_loss": final["loss"],
        "best_loss": min(validation.losses),
        **{f"metric_{name}": value for name, value in final.items() if name != "loss"},
    }


def _gradient_columns(curves: Curves, stream: StreamProbe, config: Config) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for stack in ("encoder", "decoder"):
        norms = curves.array(f"grad_norm/{stack}")[: config.probe.window]
        matrices = curves.array(f"grad_norm_matrices/{stack}")[: config.probe.window]
        if not len(norms):
            continue
        with_last = matrices[matrices[:, -1] != 0]
        columns |= {
            f"grad_norm_first_{stack}_init": float(norms[0, 0]),
            f"grad_norm_first_{stack}": statistics.median(norms[:, 0].tolist()),
            f"grad_norm_first_{stack}_matrices": statistics.median(matrices[:, 0].tolist()),
            f"grad_norm_ratio_{stack}": statistics.median(
                (with_last[:, 0] / with_last[:, -1]).tolist()
            )
            if len(with_last)
            else None,
            f"grad_ratio_stream_{stack}": stream.ratios.get(stack),
        }
    return columns


def _initial_columns(curves: Curves, initial: InitProbe) -> dict[str, Any]:
    """At step 0: gradient norms of each stack's last block, and what cross-attention adds."""
    columns: dict[str, Any] = {}
    for stack, down in initial.down.items():
        columns |= {
            f"grad_norm_last_{stack}": float(curves.array(f"grad_norm/{stack}")[0, -1]),
            f"grad_norm_last_{stack}_matrices": float(
                curves.array(f"grad_norm_matrices/{stack}")[0, -1]
            ),
            f"grad_norm_last_{stack}_down": down,
        }
    return columns | {"branch_mean_square_ratio_cross": initial.cross}


def _task(config: Config, data: Path) -> tuple[Task, Baselines]:
    train = config.train
    return _load(config.data, data, config.model.family, train.length, train.batch, train.held_out)


@lru_cache(maxsize=4)
def _load(
    options: Any, data: Path, family: str, length: int, batch: int, held_out: Validation
) -> tuple[Task, Baselines]:
    """A worker serves many cells of one corpus."""
    task = tasks.load(options, data, family, length, held_out)
    return task, baselines(task, batch)


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _device(device: torch.device) -> str:
    """The GPU's name, or the CPU's instruction set: between two of these, last digits differ."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"


def _reset_peak_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif (peak := Path("/proc/self/clear_refs")).exists():
        peak.write_text("5")  # Linux: the peak counts from now on


def _peak_memory() -> float | None:
    """Mebibytes: of the device where there is one, else of the process; None where none is told."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)
