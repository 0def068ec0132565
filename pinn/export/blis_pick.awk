# Coefficients for a BLIS workload specification, from the loads of a folder:
#
#   awk -v table=loads.csv -v load=NAME -v otherwise=NAME -f pick.awk load.yaml
#
# prints alpha, beta and the load that they were fitted to. A named load has its own coefficients.
# Others are interpolated between steady loads with fewer and more decodes, and with shorter and longer
# prompts. The number of decodes follows from the output tokens per second of decode steps, without the
# time that prompts take, or from the clients of a closed loop. If the file states neither, the load is
# that of "otherwise", or none.
#
# servers are the instances that share the requests. Of a load in flags, rate or closed, input and output
# tokens are variables; of one that BLIS knows by its name, preset, the file is BLIS's defaults.
function number(text) { return text + 0 }
# Ends a distribution of lengths: its mean goes to where it belongs.
function close_lengths() {
	if (side == "") return
	if (kind == "lognormal") mean = exp(mu + sigma * sigma / 2)
	if (weights > 0) mean = weighted / weights
	if (kind == "pareto_lognormal" || mean <= 0) unknown = 1
	if (side == "input") input = mean; else output = mean
	side = kind = ""
}
# Ends a client: its share of the requests or its place in a closed loop.
function close_client() {
	close_lengths()
	if (!open) return
	if (concurrency > 0) { closed += concurrency; share = concurrency }
	else opened++
	if (prefixed && !prefix) prefix = 50 # BLIS's own length of a group without one
	shares += share; inputs += share * input; outputs += share * output; prefixes += share * prefix
	open = concurrency = prefix = prefixed = 0; share = 1
}
# Adds a line of the table to the answer, with a weight.
function take(row, weight,    i) {
	if (weight <= 0) return
	for (i = 1; i <= 14; i++) answer[i] += weight * cell[row, first + i - 1]
	whose = whose (whose ? ", " : "") sprintf("%s (%.0f %%)", cell[row, 1], 100 * weight)
}
function tell(    i, text) {
	# An arrival waits for its whole prompt, also where its first tokens are cached.
	if (!named) answer[1] += prefixes * cell[1, per_token]
	for (i = 1; i <= 14; i++) text = text sprintf("%.10g", answer[i]) (i == 3 || i == 14 ? " " : ",")
	print text whose why
}
# Mixes the two steady loads with prompts of a length between which the asked one lies.
function steady(prompt, weight,    i, far, last, before) {
	if (weight <= 0) return
	for (i = 1; i <= rows; i++) if (cell[i, 1] ~ /^decodes-/ && cell[i, 3] == prompt) {
		left = 1 - rate * input * cell[i, 5] / 1e6
		asked = closed ? closed : rate * output / (left > 0.01 ? left : 0.01)
		far = log(asked / cell[i, closed ? 2 : 4])
		if (far <= 0) {
			if (!last) return take(i, weight)
			take(last, weight * far / (far - before))
			return take(i, weight * before / (before - far))
		}
		last = i; before = far
	}
	take(last, weight)
	if (!closed && exp(before) > 1.1) beyond = ", more than it can keep up with"
}
BEGIN {
	share = 1; indent = -1
	servers = servers > 1 ? servers : 1
	while ((getline line < table) > 0) {
		count = split(line, field, ",")
		if (!first) {
			for (i = 1; i <= count; i++) {
				if (field[i] == "alpha_arrival_us") first = i
				if (field[i] == "arrival_prompt_token_us") per_token = i
			}
			continue
		}
		rows++
		for (i = 1; i <= count; i++) cell[rows, i] = field[i]
	}
}
{
	sub(/(^|[ \t])#.*/, "")
	if (preset != "") { # the lines below its name, which are indented further
		match($0, /^ */)
		if (RLENGTH <= indent) inside = 0
		text = $0; gsub(/["' \t]/, "", text)
		if (text == preset ":") { inside = 1; indent = RLENGTH; next }
		if (!inside || text !~ /:/) next
		split(text, part, ":")
		key = part[1]
		if (part[2] == "") side = key
		if (key == "prompt_tokens" || key == "tokens" && side == "prompt") input = number(part[2])
		if (key == "output_tokens" || key == "tokens" && side == "output") output = number(part[2])
		if (key == "prefix_tokens") prefixes = number(part[2])
		next
	}
	count = split($0, part, /[{},]/)
	for (i = 1; i <= count; i++) {
		text = part[i]
		item = text ~ /^[ \t]*- /
		sub(/^[ \t]*(- *)?/, "", text)
		if (item && section == "clients") { close_client(); open = 1 }
		if (text !~ /:/) continue
		key = value = text
		sub(/:.*/, "", key); sub(/^[^:]*:[ \t]*/, "", value)
		gsub(/["' \t]/, "", key); gsub(/["' \t]/, "", value)
		if (key ~ /^(cohorts|servegen_data|lifecycle|multi_turn|think_time_us)$/) unknown = 1
		if (key ~ /^(clients|inference_perf)$/) section = key
		if (key == "clients") open = value ~ /^\[/
		if (key ~ /^(input|output)_distribution$/) {
			close_lengths(); side = substr(key, 1, index(key, "_") - 1)
			mean = mu = sigma = weighted = weights = 0
		} else if (key ~ /^(arrival|network|prefix_group|prefix_length|slo_class|streaming)$/) {
			close_lengths()
			if (key == "prefix_group" && value != "") prefixed = 1
			if (key == "prefix_length") prefix = number(value)
		} else if (side != "") {
			if (key == "type") kind = value
			else if (key == "mean" || key == "value") mean = number(value)
			else if (key == "mu") mu = number(value)
			else if (key == "sigma") sigma = number(value)
			else if (key ~ /^[0-9]+$/) { weights += number(value); weighted += key * value }
		}
		if (key == "aggregate_rate") rate = number(value)
		if (key == "rate_fraction") share = number(value)
		if (key == "concurrency") concurrency = number(value)
		if (section != "inference_perf") continue
		if (key == "rate") stage = number(value)
		if (key == "duration") { sent += stage * value; rates += stage * stage * value }
		if (key == "question_len") input = number(value)
		if (key == "system_prompt_len") prefixes = number(value)
		if (key == "output_len") output = number(value)
		if (key == "enable_multi_turn_chat" && value == "true") unknown = 1
	}
}
END {
	close_client()
	if (sent > 0) { rate = rates / sent; shares = 1; inputs = input; outputs = output }
	if (shares > 0) { input = inputs / shares; output = outputs / shares }
	if (shares > 0 && !sent) prefixes /= shares
	rate /= servers; closed /= servers
	if (input <= 0) unknown = 1
	if (closed ? opened : rate <= 0 || output <= 0) unknown = 1
	if (load != "" || unknown) {
		named = load != ""
		if (load == "") { why = ", since nothing says how many requests run at a time"; load = otherwise }
		for (i = 1; i <= rows; i++) if (load != "" && cell[i, 1] == load) { take(i, 1); tell() }
		exit
	}
	for (i = 1; i <= rows; i++) if (cell[i, 1] ~ /^decodes-/) {
		p = cell[i, 3]
		if (p <= input && p > shorter) shorter = p
		if (p >= input && (!longer || p < longer)) longer = p
	}
	if (!shorter) shorter = longer
	if (!longer) longer = shorter
	# What a prompt costs beyond its tokens is spread over them.
	near = shorter == longer ? 1 : (1 / input - 1 / longer) / (1 / shorter - 1 / longer)
	steady(shorter, near)
	steady(longer, 1 - near)
	why = closed ? " for " closed " requests at a time" \
		: sprintf(" for %.4g requests/s of %.0f + %.0f tokens", rate, input, output)
	if (servers > 1) why = why " on each of " servers " servers"
	why = why beyond
	tell()
}
