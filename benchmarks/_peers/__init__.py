"""Others that give one process a role, and ours, killed side by side in one run.

    rivals     which there are here, how each server is started, and which settings to try, from the smallest
       |
    ladder     the smallest setting without a wrong expiry while every core is busy
       |
    contest    three contenders of one rival: kill the one that holds the role; how long none does
       |  a process each
    contender  campaigns, holds, notes when it began; by   etcd   zookeeper   redis_lock
    ours       the same questions to a group of ours

A takeover ends at the moment at which the next process knows that it holds the role, by its own reading of the host's
clock. None of the three gives a fencing token with the role as it is used here; a lock in Redis is, besides, lost with
its Redis and given in no order. They are measured as their own recipes use them.
"""
