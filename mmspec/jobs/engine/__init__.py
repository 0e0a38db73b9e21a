"""The engine of jobs: streams of records, shards that are finished or not, results that appear whole or not at all."""
