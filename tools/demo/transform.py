"""The demo's transform under a name that `analyze --transform` accepts.

counterpoise analyze DATA --transform counterpoise.tools.demo.transform:transform
"""

from .command import DemoSettings, make_transform

transform = make_transform(DemoSettings(""))
