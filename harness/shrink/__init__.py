"""`harness shrink`: a failing case made as small as it can be while it fails in the same way."""
