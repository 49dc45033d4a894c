-- Gives the lease up if it is still the holder's.
-- KEYS: the lease. ARGV: the holder.

local wrong = misfit({'string'})
if wrong then return wrong end

if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return redis.status_reply('OK')
