"""What keeps the promises: outcomes, policy, submit, claim, finish, recover, EntityLock, dispatch."""
