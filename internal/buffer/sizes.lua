-- KEYS: the four sets. Reply: the sizes of inflight, dirty:namespace and
-- dirty:repository.

local wrong = misfit(SETS)
if wrong then return wrong end

return {redis.call('SCARD', KEYS[2]), redis.call('SCARD', KEYS[3]), redis.call('SCARD', KEYS[4])}
