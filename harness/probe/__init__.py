"""What runs inside a training process: it watches the trainer and tells the harness, and it plants numeric faults."""
