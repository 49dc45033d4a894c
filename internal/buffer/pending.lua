-- Reads buffers and flushes, both of a scope at one instant.
-- KEYS: flush and buffer of each scope.
-- Reply: for each scope {{field, value, ...} of the flush, the same of the
--        buffer}, or an empty array when either is of a wrong type.

local replies = {}
for i = 1, #KEYS, 2 do
  local flush, buffer = on_hash('HGETALL', KEYS[i]), on_hash('HGETALL', KEYS[i + 1])
  replies[#replies + 1] = flush and buffer and {flush, buffer} or {}
end
return replies
