"""Durable tasks: functions that the manager keeps, and the executors, batches, flows and triggers that run them."""
