"""`harness chaos`: random schedules of several faults over several attempts, within a budget."""
