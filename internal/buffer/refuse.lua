-- The end of emit.lua, behind common.lua: takes back what was done to the sets,
-- because one of them is none, and names it.

local kinds = {'set'}
for i = 1, n do
  kinds[1 + i] = 'set'
  if dirtied[i] == 1 then redis.pcall('SREM', KEYS[1 + i], ARGV[3 * i]) end
end
return misfit(kinds) or wrong
