-- A mark is the epoch and the number of changes at some time: what Redis holds now must not be older.
local function mark_of(epoch, books)
  return redis.call('GET', epoch) .. ' ' .. (redis.call('HGET', books, 'changes') or '0')
end
local function went_back(epoch, books, mark)
  local its_epoch, changes = string.match(mark, '^(%S+) (%d+)$')
  return its_epoch ~= nil and redis.call('GET', epoch) == its_epoch
    and tonumber(redis.call('HGET', books, 'changes') or 0) < tonumber(changes)
end
