"""What commands read: cost tables, JSON files, models, programs, prices."""
