"""What commands share: reports, signals, messages about rejected peers."""
