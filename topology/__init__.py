"""The YAML (read, check, plan, draw: pure), the driver that wires and runs it, and the command line.

May be touched from outside: `parse.load`, `plan.plan`, `driver.run`; the command line is `topology.cli`.
"""
