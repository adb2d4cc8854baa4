"""The data of a model: arrays in memory, on disk and over devices; what tells data sets apart."""

from numpyro_sgmcmc.data.on_disk import OnDisk
from numpyro_sgmcmc.data.sharded import ShardedRows, shard_rows

__all__ = ["OnDisk", "ShardedRows", "shard_rows"]
