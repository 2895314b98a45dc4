"""From a study to finished cells. The ledger says what is done, the tracker shows how it went."""

from harness.sweep.study import Study

__all__ = ["Study"]
