"""The demo's usual transform under a name: `analyze --transform` can measure what it trains on.

counterpoise analyze DATA --transform counterpoise.tools.demo_transform:transform
"""

from .demo import Settings, make_transform

transform = make_transform(Settings(""))
