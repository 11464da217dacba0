"""What tests share, one file per subject; each helper is written once."""
