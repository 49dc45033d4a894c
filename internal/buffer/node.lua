-- Describes the node that serves a bucket. INFO has no key; in a script that
-- has one it runs on the node that owns the slot.
-- KEYS: the bucket's identity.
-- Reply: {identity or '', run id, maxmemory-policy}

local identity = ''
if redis.call('TYPE', KEYS[1])['ok'] == 'string' then identity = redis.call('GET', KEYS[1]) end
return {
  identity,
  string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '',
  string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w%-]+)') or '',
}
