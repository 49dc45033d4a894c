-- Describes the node that serves a bucket. INFO has no key; in a script that
-- has one it runs on the node that owns the slot.
-- KEYS: the bucket's identity.
-- Reply: {identity or '', run id, maxmemory-policy}

local function info(section, pattern)
  local reply = redis.pcall('INFO', section)
  if type(reply) == 'table' then error('INFO ' .. section .. ' is refused (the ACL user needs +info): ' .. reply.err, 0) end
  return string.match(reply, pattern) or ''
end

local identity = ''
if redis.call('TYPE', KEYS[1])['ok'] == 'string' then identity = redis.call('GET', KEYS[1]) end
return {identity, info('server', 'run_id:(%w+)'), info('memory', 'maxmemory_policy:([%w%-]+)')}
