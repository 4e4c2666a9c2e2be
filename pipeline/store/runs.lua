-- What was stored last of each environment: of its latest runs, latest first, "run row next_index", joined by ";".
-- So an item is stored once, and a successor learns how far each run came.
local RUNS = 8 -- of one environment that are remembered: a worker starts its environments anew within its budget
local function load_runs(key, environments)
  local found, runs_of = redis.call('HMGET', key, unpack(environments)), {}
  for i, environment in ipairs(environments) do
    local runs = {}
    for run, row, next_index in string.gmatch(found[i] or '', '(%d+) (%-?%d+) (%d+)') do
      runs[#runs + 1] = {run, row, next_index}
    end
    runs_of[environment] = runs
  end
  return runs_of
end
local function is_repeat(runs, run, row)
  for _, put in ipairs(runs) do
    if put[1] == run then return tonumber(row) <= tonumber(put[2]) end
  end
  return false
end
local function with_run(runs, run, row, next_index)
  local newer = {{run, row, next_index}}
  for _, put in ipairs(runs) do
    if put[1] ~= run and #newer < RUNS then newer[#newer + 1] = put end
  end
  return newer
end
local function save_runs(key, runs_of, changed)
  for environment in pairs(changed) do
    local words = {}
    for i, put in ipairs(runs_of[environment]) do words[i] = table.concat(put, ' ') end
    redis.call('HSET', key, environment, table.concat(words, ';'))
  end
end
