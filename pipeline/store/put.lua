#!lua
-- Appends items, each once, as far as the capacity allows.
--   KEYS  stream, books, last, epoch, replies
--   ARGV  group, new epoch, capacity, drop_oldest (0 | 1), producer, token, then per item:
--         environment, run, row, next_index, valid, payload
--   reply {stored, repeated, dropped, epoch}
-- Without flags the server refuses the whole script when it is out of memory: nothing is half done.
local stream, books, last, epoch, replies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local RUNS = 8 -- of one environment that are remembered: a worker starts its environments anew within its budget
local group, capacity, drop, producer, token = ARGV[1], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5], ARGV[6]

-- A call that was carried out while its reply was lost is answered with that reply.
local previous = redis.call('HGET', replies, producer)
if previous then
  local old, stored, repeated, dropped = string.match(previous, '^(%S+) (%d+) (%d+) (%d+)$')
  if old == token then
    return {tonumber(stored), tonumber(repeated), tonumber(dropped), redis.call('GET', epoch)}
  end
end
if redis.call('SET', epoch, ARGV[2], 'NX') then
  redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- BUSYGROUP: it is there
end

local length = redis.call('XLEN', stream)
local untaken_from = nil
local function drop_oldest_untaken()
  if not untaken_from then
    local info = redis.call('XINFO', 'GROUPS', stream)
    for _, fields in ipairs(info) do
      local name, delivered
      for i = 1, #fields, 2 do
        if fields[i] == 'name' then name = fields[i + 1] end
        if fields[i] == 'last-delivered-id' then delivered = fields[i + 1] end
      end
      if name == group then untaken_from = '(' .. delivered end
    end
  end
  local entry = untaken_from and redis.call('XRANGE', stream, untaken_from, '+', 'COUNT', 1)[1]
  if not entry then return nil end
  redis.call('XDEL', stream, entry[1])
  return tonumber(entry[2][2]) -- fields: v, valid, p, payload
end

local environments = {}
for i = 7, #ARGV, 6 do environments[#environments + 1] = ARGV[i] end
local before = redis.call('HMGET', last, unpack(environments))
local last_put, changed = {}, {} -- of each environment its runs, latest first: {{run, row, next_index}...}; what to set
for i, environment in ipairs(environments) do
  local runs = {}
  for run, row, next_index in string.gmatch(before[i] or '', '(%d+) (%-?%d+) (%d+)') do
    runs[#runs + 1] = {run, row, next_index}
  end
  last_put[environment] = runs
end
local function row_of(environment, run)
  for _, put in ipairs(last_put[environment]) do
    if put[1] == run then return tonumber(put[2]) end
  end
end
local function remember(environment, run, row, next_index)
  local runs = {{run, row, next_index}}
  for _, put in ipairs(last_put[environment]) do
    if put[1] ~= run and #runs < RUNS then runs[#runs + 1] = put end
  end
  last_put[environment] = runs
  changed[environment] = true
end

local stored, repeated, dropped, added = 0, 0, 0, 0
for i = 7, #ARGV, 6 do
  local environment, run, row, next_index = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local put = row_of(environment, run)
  if put and tonumber(row) <= put then
    repeated = repeated + 1
  else
    if length >= capacity and drop then
      local valid = drop_oldest_untaken()
      if valid then
        length, dropped = length - 1, dropped + valid
      end
    end
    if length >= capacity then break end
    redis.call('XADD', stream, '*', 'v', ARGV[i + 4], 'p', ARGV[i + 5])
    remember(environment, run, row, next_index)
    length, added = length + 1, added + tonumber(ARGV[i + 4])
  end
  stored = stored + 1
end

for environment in pairs(changed) do
  local words = {}
  for i, put in ipairs(last_put[environment]) do words[i] = table.concat(put, ' ') end
  redis.call('HSET', last, environment, table.concat(words, ';'))
end
if added ~= 0 then redis.call('HINCRBY', books, 'put_total', added) end
if dropped ~= 0 then redis.call('HINCRBY', books, 'dropped_total', dropped) end
if added ~= dropped then redis.call('HINCRBY', books, 'waiting', added - dropped) end
redis.call('HSET', replies, producer, string.format('%s %d %d %d', token, stored, repeated, dropped))
return {stored, repeated, dropped, redis.call('GET', epoch)}
