"""results/<study>/: the rows that count, their curves, and how both are kept. No torch."""
