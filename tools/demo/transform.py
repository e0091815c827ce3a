"""The demo's usual transform under a name: `analyze --transform` can measure what it trains on.

counterpoise analyze DATA --transform counterpoise.tools.demo.transform:transform
"""

from .command import DemoSettings, make_transform

transform = make_transform(DemoSettings(""))
