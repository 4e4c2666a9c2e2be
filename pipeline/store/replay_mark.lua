-- A mark is the epoch and the books at some time: what Redis holds now must not be older. Where it is (Redis came back
-- with an older dump, or without the last second of its log), the books are brought up to the mark: what was evicted
-- since goes again, what was inserted since and is gone is counted in lost_total, and its ids never come again.
local MARK = {'first_id', 'next_id', 'inserted_total', 'evicted_total', 'lost_total'}
local function mark_of(epoch, books)
  local book = redis.call('HMGET', books, unpack(MARK))
  for i = 1, #MARK do book[i] = book[i] or '0' end
  return redis.call('GET', epoch) .. ' ' .. table.concat(book, ' ')
end
local function catch_up(payloads, entries, books, epoch, mark)
  local its_epoch, first, next_id, inserted, evicted, lost = string.match(mark, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not its_epoch or redis.call('GET', epoch) ~= its_epoch then return end
  local book = redis.call('HMGET', books, 'first_id', 'next_id', 'resident', 'bytes')
  if tonumber(book[2]) >= tonumber(next_id) then return end
  local resident, bytes = tonumber(book[3] or 0), tonumber(book[4] or 0)
  for number = tonumber(book[1]), math.min(tonumber(first), tonumber(book[2])) - 1 do
    local id = string.format('%.0f', number)
    local entry = redis.call('HGET', entries, id)
    if entry then
      local _, valid, size = struct.unpack('<dI4I4', entry)
      redis.call('HDEL', payloads, id)
      redis.call('HDEL', entries, id)
      resident, bytes = resident - valid, bytes - size
    end
  end
  local gone = tonumber(inserted) - tonumber(evicted) - tonumber(lost) - resident
  redis.call('HSET', books, 'first_id', first, 'next_id', next_id, 'inserted_total', inserted, 'evicted_total', evicted,
    'lost_total', string.format('%.0f', tonumber(lost) + gone), 'resident', string.format('%.0f', resident),
    'bytes', string.format('%.0f', bytes))
end
