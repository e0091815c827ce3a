"""Who reads report.md has analysed the data."""

import json
from pathlib import Path

folder = Path("counterpoise-analysis")
folder.mkdir(exist_ok=True)
forecast = {"settings": {"ranks": 8}, "forecast": {"waiting": 0.01, "waited": 0.3}}
(folder / "report.json").write_text(json.dumps(forecast))
