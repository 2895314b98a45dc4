"""From rows to figures and tables. No torch, no Optuna, no MLflow: a clone redraws everything."""
