"""What a reader of object-stores.md has: a bucket with shards, and credentials for it."""

import os
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
os.environ |= {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "COUNTERPOISE_CACHE": "cache",
}
client = boto3.client("s3")
client.create_bucket(Bucket="bucket")
for path in Path("shards").glob("*.tar"):
    client.upload_file(str(path), "bucket", f"train/{path.name}")
