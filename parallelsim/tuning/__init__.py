"""The loop with reality: propose a plan, record its run, correct the simulator, propose again."""
