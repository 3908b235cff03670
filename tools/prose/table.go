package main

// rules is the table of the rules, in the order of their priority. A finding replaces the findings of later rules
// in the same words.
var rules []*rule

func init() {
	rules = []*rule{
		personRule, definitionRule, clauseRule, causativeRule, orderRule, pronounRule, pictureRule, chainRule,
		formRule, nounRule, spellingRule, longRule, columnsRule, namesRule, staleRule, subjectRule,
	}
	for _, r := range rules {
		r.compiled, r.compiledExcept = compileAll(r.patterns...), compileAll(r.except...)
	}
}

var definitionRule = &rule{
	name:    "definition",
	refuses: "a clause that defines a thing by what, who, where or how",
	instead: "name the thing: X is a ..., F returns the ...",
	patterns: []string{
		"is|are|was|were what|who|whom|where|why",
		"is|are how !to|many|much|long|far|old|big|large|often",
		"is|are how many|much|long|far|often",
		"says|say|tells|tell|has|makes|make what|who|whom|where|how|whether|why|which|if <x>",
		"has|have what|whatever",
		"^doc what|who|whom|where|whatever|how|why",
		"^doc that|those <verb>",
	},
	except: []string{
		"this|that|which|here|there|it|these is|are what|where|how|why",
		"what|who|where|how is|are <x>", "has|have how",
	},
	wrong: []string{
		"What the driver responds with to user contexts.",
		"Source says which part of which headers to look at.",
		"window is where a client has its commands.",
		"sessionWorld is what all sessions of a process share.",
		"maxTraceLines is how many lines wait to be written.",
		"errPlace tells whether the place is free.",
		"How many packets may be outstanding.",
	},
	right: []string{
		"Response is the driver-private response data.",
		"maxTraceLines is the number of lines that wait for the writer.",
		"The caller decides whether the request is sent again.",
		"This is how the kernel orders the two locks.",
		"The return value reports whether the queue was full.",
	},
}

var clauseRule = &rule{
	name:    "clause",
	refuses: "a clause in place of a noun",
	instead: "use a noun or a participle: posted requests, the waiter, the blocked call",
	patterns: []string{
		"what|whatever <verb>",
		"what <x> <verb>|<past>",
		"what|whatever the|a|an|its|their|each|every|this|one|another|other|others <x> <x>? <verb>|<past>",
		"what|whatever it|they|he <x>",
		"!<person>|, who <x>", "^ who <x>",
		"those that|which|who|it|they|whose|whom",
		"the|an one|ones that|which|who|whose|it|they",
		"where it|they is|are|was|were <past>",
		"of|by|behind where",
		"the which", "that which",
		"returns|return|reports|gives|yields|finds|notes|asks where|who|whom|what|which",
		"returns|return|reports|gives how !many|much|long|often|far",
		"is|are|was|were|has|have|been|be in|at|of|from|for|with|by|about $",
	},
	except: []string{
		"what|whatever we|you|i", "what to <x>", "what happens|follows|if", "what <x> does|would|should",
		"what <x> <x> does|would|should", "^ what|who|whatever <x> <x>? <x>? <x>? <x>? <x>? <x>? ?",
		"see|know|knows|decide|sure|matter|exactly|out what|who",
		"is|are|be|being|was|than|except the one|ones that|which",
	},
	wrong: []string{
		"Flush completes what is posted.",
		"The lock is held by who waits for it.",
		"The queue keeps those that came before the reset.",
		"Events go to where it is stopped.",
		"The end of a window is of what comes from the peer.",
		"The table drops the ones that have ended.",
		"maxWindows bounds the pieces that the buffers of a client are in.",
	},
	right: []string{
		"Flush completes all posted requests.",
		"The waiter holds the lock until its event arrives.",
		"An operator who restarts the service loses the counters.",
		"Check what to do next before the timer fires.",
		"The caller cannot know what the peer will send.",
		"Of course the port can change between two packets.",
	},
}

var personRule = &rule{
	name:    "person",
	refuses: "who, whose and nobody for programs, threads and other objects",
	instead: "say: no thread, a caller, the owner; that or which for a thing",
	patterns: []string{
		"nobody|somebody|anybody|everybody|whoever|whomever|whosoever",
		"<thing> who|whose|whom",
		"<thing> , who|whose|whom",
	},
	except: []string{"user|as nobody", "nobody user|account"},
	wrong: []string{
		"The lock is free, so nobody waits when Close returns.",
		"Whoever raises an event writes the record.",
		"A thread who polls the queue keeps the token.",
		"Packets of a program whose queue is full are dropped.",
		"The descriptor belongs to somebody else.",
	},
	right: []string{
		"No thread waits when Close returns.",
		"A user whose quota is exhausted gets ENOMEM.",
		"The process runs as nobody, without capabilities.",
		"Each caller that raises an event writes the record.",
	},
}

var causativeRule = &rule{
	name:    "causative",
	refuses: "a causative or a passive that hides the actor",
	instead: "name the actor and its action: delays the call, makes doorbells fail, reports to",
	patterns: []string{
		"has|have|had|having a|an|the|its|each|every|another|one|this|all|no|any <x> <x>? <pure>",
		"has|have|having it|them <pure>|<past>",
		"has|have|had many|some|two|several|other|others|<code> <pure>",
		"let|lets|letting <x> <base>",
		"let|lets|letting a|an|the|its|each|every|another|one|this|all|no|any|other|their <x> <x>? <base>",
		"is|are|was|were|be|been|being told",
	},
	except: []string{"are|is|be|was|were|being told apart", "let|lets us|me|you"},
	wrong: []string{
		"carryOut has a call wait as the rules say.",
		"The rule lets doorbells fail.",
		"Logf is told of sessions.",
		"The option has the adapter stop after ten requests.",
		"Attach lets a queue pair receive from a group.",
	},
	right: []string{
		"carryOut delays the call by the time of the rule.",
		"The rule makes doorbells fail with EIO.",
		"The hook lets you replace the clock in tests.",
		"Locks of one type are told apart by their field.",
		"The port has a separate receive queue.",
	},
}

var orderRule = &rule{
	name:    "order",
	refuses: "an inverted or nested order of words",
	instead: "put the subject first, then the verb, then the object; split the sentence",
	patterns: []string{
		"^ of !course", "^ to each|every|all|whom|one|none|another",
		"^ from|by|with each|every|all|none|whom",
		"of a|an|the|its|this <x> <x>? only|alone",
		"to|of|from|by|for|with each of them",
		"is|are|was|were|am to be <past>",
		"^ so is|are|was|do|does|did|has|have|can|may|must|will <x>",
		", which|that|who <x> is|are|was|were|has ,",
		", so is|are|was|does|has|can|may|must|will a|an|the|one|this|its",
	},
	except: []string{"of the <x> is|are only|alone"},
	wrong: []string{
		"Of the wire only the headers are kept.",
		"The counters are of the wire only.",
		"To each of them it is given once.",
		"The buffer is to be freed by the caller.",
		"applyTC puts a queueing discipline, which d.netem is, on the interface.",
		"So does a handler that polls once.",
	},
	right: []string{
		"The counters cover only the wire.",
		"Each thread receives one copy.",
		"The caller must free the buffer.",
		"Of course the peer may retransmit.",
		"To free a region, call Close.",
	},
}

var pronounRule = &rule{
	name:    "pronoun",
	refuses: "a pronoun or a genitive without its noun in the sentence",
	instead: "repeat the noun",
	patterns: []string{
		"^doc it|they|he|she|that", "^doc such !as",
		"^doc those|these of|for|in|at|on|to|are|were|have|may|can|must|<past>",
		"<owner> <stop>", "<owner> $", "<other> afterwards|again|now|already|and|or|until|when|if|while|as",
		"^ <code> is|are|was|were that|those of|in|on|from|with", "<owner> to <x> <stop>",
		"so many|much <x> at|in|of|and|<stop>",
	},
	check: oneAndOther,
	wrong: []string{
		"It may be closed twice.",
		"They hold the device lock.",
		"Each address that has gone, the one by a timer and the other by a signal.",
		"The owner of the memory is root or the user's.",
		"The handle may be another's afterwards.",
		"threadNumber is that of the caller.",
	},
	right: []string{
		"The handle may be closed twice.",
		"The callers hold the device lock. They may not sleep.",
		"Either copy of the packet can arrive first, and the other one is dropped.",
		"The key is valid until the program's last descriptor is closed.",
	},
}

var pictureRule = &rule{
	name:    "picture",
	refuses: "a picture for a mechanism",
	instead: "use the word of the field: ownership, queue, iteration, doorbell, timeout, pending, allow",
	check:   pictures,
	wrong: []string{
		"claimed takes the turn of an endpoint.",
		"Packets of slow programs wait in a lane.",
		"The session fails when its patience is over.",
		"A poll loop ends after one lap.",
		"The debt is settled when the peer answers.",
		"The thread polls in vain for a while.",
		"Requests are stranded when the service ends.",
	},
	right: []string{
		"The workers run in turn.",
		"The option turns off checked mode.",
		"The call returns at the end of each iteration.",
		"A doorbell starts the requester, which turns requests into packets.",
		"SETTLE is a code of the specification.",
	},
}

var chainRule = &rule{
	name:     "chain",
	refuses:  "more than one reason in a sentence (so that, because, since, as, for)",
	instead:  "give one reason a sentence, or leave one out",
	check:    chains,
	overlaps: true,
	wrong: []string{
		"The lock is held so that no call starts, since the device may go, as in a reset.",
		"The queue is drained because the program waits, so that it can exit.",
		"Copy the header, for it may change, as the peer owns the page.",
	},
	right: []string{
		"The lock is held so that no call starts during a reset.",
		"Copy the header first, since the peer can change it.",
		"Some devices, for example rxe, keep a copy because they retransmit.",
	},
}

var formRule = &rule{
	name:    "form",
	refuses: "a doc comment that does not begin with the name and a verb in the third person",
	instead: "begin with the name, then a verb: F returns ..., X is a ...",
	check:   form,
	wrong: []string{
		"// Closes the device.\nfunc Close() {}",
		"// drain: a queue that is drained takes requests.\nfunc drain() {}",
		"// Open open the file.\nfunc Open() {}",
		"// state without a verb.\ntype state int",
	},
	right: []string{
		"// Close closes the device.\nfunc Close() {}",
		"// A Reader reads from a ring.\ntype Reader int",
		"// Options configure a service.\ntype Options int",
		"// Append appends v to the queue. It never blocks.\nfunc Append(v int) {}",
		"// TestDrain: a queue that is drained takes requests.\nfunc TestDrain() {}",
		"// F atomically replaces the state.\nfunc F() {}",
	},
}

var nounRule = &rule{
	name:    "noun",
	refuses: "a comment of a function that defines it by a noun",
	instead: "use a verb for the action of the function: F returns the ..., F reports whether ...",
	check:   noun,
	wrong: []string{
		"// Addr is the address of the peer.\nfunc Addr() {}",
		"// statuses are the files of a process.\nfunc statuses() {}",
		"// fd has a descriptor of the file.\nfunc fd() {}",
	},
	right: []string{
		"// Addr returns the address of the peer.\nfunc Addr() {}",
		"// completed is the completion handler.\nfunc completed() {}",
		"// Pair is a constructor for tests.\nfunc Pair() {}",
		"// State is the state of a device.\ntype State int",
	},
}

var spellingRule = &rule{
	name:    "spelling",
	refuses: "a misspelt word, or American spelling",
	instead: "write it in British spelling",
	check:   misspelt,
	wrong: []string{
		"The behavior of the peer is undefined.",
		"The context is canceled.",
		"The driver initializes the ring.",
		"The reciever drops it.",
	},
	right: []string{
		"The behaviour of the peer is undefined.",
		"The context is cancelled.",
		"The driver initialises the ring with initializeRing.",
		"A program reads the disk.",
	},
}

var longRule = &rule{
	name:     "long",
	refuses:  "a sentence of more than 45 words",
	instead:  "split the sentence",
	check:    long,
	overlaps: true,
	wrong: []string{
		numbered(46), "Note: " + numbered(50), numbered(200),
	},
	right: []string{
		numbered(45), numbered(30) + ". " + numbered(30) + ".", "One word.",
	},
}

var columnsRule = &rule{
	name:      "columns",
	refuses:   "a line of more than 120 columns",
	instead:   "break the line at 120 columns",
	elsewhere: func(line string) bool { return len(tooLong("a.go", 1, line)) > 0 },
	wrong:     []string{numbered(50), "\t" + numbered(40), numbered(60)},
	right:     []string{"short", numbered(10), "// https://example.org/" + numbered(50)},
}

var namesRule = &rule{
	name:      "names",
	refuses:   "two names of one type that differ by a letter, a tense or a plural alone",
	instead:   "give one of them another word",
	elsewhere: alikePair,
	wrong:     []string{"probe probes", "drain drained", "consumed consumer", "postedEvents postedEvent", "waiting waits"},
	right:     []string{"state route", "AllocMR AllocMW", "Int32 Int64", "Dereg Rereg", "Fatal Fatalf", "head tail"},
}

var staleRule = &rule{
	name:      "stale",
	refuses:   "a sentence that begins with a name that the package does not use",
	instead:   "write the current name",
	elsewhere: beginsStale,
	wrong: []string{
		"post: add adds a completion. put returns false.", "post: add adds a completion.",
		"beginUse: It begins. leave ends the use.",
	},
	right: []string{
		"add: add adds a completion. add may sleep.", "post: Adds (see add) are rare.", "post: rxe retries a request.",
		"post: It returns an error, e.g. adds fail.",
	},
}

var subjectRule = &rule{
	name:      "subject",
	refuses:   "a subject of a commit of more than 72 columns, or one that is not package: imperative",
	instead:   "write package: imperative, in at most 72 columns",
	elsewhere: func(line string) bool { return len(checkSubject("commit", line)) > 0 },
	wrong: []string{
		"ib: added a test", "ib: adds a test", "ib: adding a test", "Add a test", "ib: Add a test", "ib: fewer tests",
		"ib: add " + numbered(40), "ib: made the ring smaller",
	},
	right: []string{
		"ib: add a test", "driver/rxe: process packets in one pass", "all: bring comments up to date",
		"docs: embed the table",
		"Revert \"ib: add a test\"", "ib, ib/weak: feed the model with random seeds",
	},
}
