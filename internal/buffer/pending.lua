-- Reads buffers and flushes, both of a scope at one instant.
-- KEYS: flush and buffer of each scope.
-- Reply: for each scope {{field, value, ...} of the flush, the same of the
--        buffer}, or an empty array when either is of a wrong type.

local function readable(key)
  local kind = redis.call('TYPE', key)['ok']
  return kind == 'none' or kind == 'hash'
end

local replies = {}
for i = 1, #KEYS, 2 do
  local flush, buffer = KEYS[i], KEYS[i + 1]
  if readable(flush) and readable(buffer) then
    replies[#replies + 1] = {redis.call('HGETALL', flush), redis.call('HGETALL', buffer)}
  else
    replies[#replies + 1] = {}
  end
end
return replies
