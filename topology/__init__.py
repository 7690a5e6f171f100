"""The YAML (read, check, plan, draw: pure), the driver that wires and runs it, and the command line.

May be touched from outside: `parse.load`, `check.check`, `plan.plan`, `plan.missing`, `draw`, `driver.run`.
The command line is `topology.cli`.
"""
