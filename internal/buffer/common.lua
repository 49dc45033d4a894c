-- What the other scripts share; it stands in front of each of them.
-- Numbers and markers stay strings throughout: a Lua number holds 53 bits.

-- misfit is an error reply that names the first key of KEYS whose type is not
-- the one in kinds, nil if there is none. It runs before anything is changed,
-- because what a script has changed is not rolled back when it fails.
local function misfit(kinds)
  for i, kind in ipairs(kinds) do
    local found = redis.call('TYPE', KEYS[i])['ok']
    if found ~= 'none' and found ~= kind then
      return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. found .. ', not a ' .. kind
        .. ': Stowage did not write it; rename or delete it')
    end
  end
end

-- on_hash is the reply of a command, nil when the key holds no hash. Any other
-- error ends the script: that the cluster is moving a key, say, tells nothing
-- about it.
local function on_hash(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then return nil end
  error(reply.err, 0)
end

-- magnitude is how many digits an integer has, nil for what HINCRBY would
-- not take as one.
local function magnitude(text)
  if text == '0' then return 1 end
  local digits = string.match(text, '^%-?([1-9]%d*)$')
  return digits and #digits
end

-- dirty_set is the dirty set of a member, in scripts that begin with the four
-- sets: quarantine, inflight, dirty:namespace, dirty:repository.
local function dirty_set(member)
  return string.sub(member, 1, 1) == 'n' and KEYS[3] or KEYS[4]
end

-- since is the sorted set of a bucket's dirty members, by the ms at which they
-- became dirty. It is for people who watch, so no script fails for it.
local function since()
  return (string.gsub(KEYS[1], 'quarantine$', 'since'))
end

local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local SETS = {'set', 'set', 'set', 'set'}
