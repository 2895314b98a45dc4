"""From rows to figures, tables and verdicts. No torch, no Optuna, no MLflow: a clone redraws everything."""
