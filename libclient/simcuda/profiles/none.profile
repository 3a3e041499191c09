# No latency is added: every call takes as long as the simulator needs.
