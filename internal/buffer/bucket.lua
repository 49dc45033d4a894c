-- Describes a bucket. The keys of flushes and buffers are made here, as in
-- claim.lua.
-- KEYS: the four sets, then the lease.
-- ARGV: the bucket's key prefix, how many members of a set to look at.
-- Reply: {sizes of quarantine, inflight, dirty:namespace and dirty:repository,
--        holder of the lease or '', its ms, the smallest batch id of a flush or
--        '', the least ms that a buffer has to live, or -1}

local wrong = misfit({'set', 'set', 'set', 'set', 'string'})
if wrong then return wrong end

local prefix, sample = ARGV[1], ARGV[2]

local oldest = ''
for _, member in ipairs(redis.call('SRANDMEMBER', KEYS[2], sample)) do
  local found = on_hash('HMGET', prefix .. 'flush:' .. member, 'batch')
  local batch = found and found[1] or ''
  if oldest == '' or batch ~= '' and batch < oldest then oldest = batch end
end

local least = -1
for set = 3, 4 do
  for _, member in ipairs(redis.call('SRANDMEMBER', KEYS[set], sample)) do
    local left = redis.call('PTTL', prefix .. 'buf:' .. member)
    if left >= 0 and (least < 0 or left < least) then least = left end
  end
end

local reply = {}
for set = 1, 4 do reply[set] = redis.call('SCARD', KEYS[set]) end
reply[5] = redis.call('GET', KEYS[5]) or ''
reply[6] = redis.call('PTTL', KEYS[5])
reply[7] = oldest
reply[8] = least
return reply
