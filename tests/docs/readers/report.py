"""Who reads report.md has analysed the data."""

import json
from pathlib import Path

folder = Path("counterpoise-analysis")
folder.mkdir(exist_ok=True)
forecast = {"plan": {"ranks": 8}, "waiting": {"balanced": 0.01, "random": 0.3}}
(folder / "report.json").write_text(json.dumps(forecast))
