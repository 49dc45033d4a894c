-- Puts members into the quarantine: from now on nothing is added to them. Their
-- keys stay, and they stay in their sets, where a claim reports them until they
-- are forgotten.
-- KEYS: the four sets. ARGV: the members.

local wrong = misfit(SETS)
if wrong then return wrong end

for _, member in ipairs(ARGV) do redis.call('SADD', KEYS[1], member) end
return redis.status_reply('OK')
