"""Workers on a cluster, beside the trainers: `cp.fleet.Ray`, and the engines that start them."""

from .on_ray import Ray

__all__ = ["Ray"]
