"""What is put on the path of a foreign trainer's interpreter (`PYTHONPATH`): the standard library only, until it imports torch.

The trainer's environment need not have the harness installed: nothing here imports anything of `harness`.
"""
