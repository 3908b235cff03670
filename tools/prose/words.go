package main

import "strings"

// things lists nouns of the field for objects that are not persons.
var things = set(`
	thread threads packet packets object objects program programs queue queues device devices call calls goroutine
	goroutines process processes pair pairs region regions window windows key keys page pages socket sockets file files
	descriptor descriptors connection connections message messages datagram datagrams request requests completion
	completions event events driver drivers service services launcher launchers supervisor peer peers consumer
	consumers client clients server servers endpoint endpoints context contexts handle handles domain domains group
	groups buffer buffers port ports interface interfaces kernel kernels library libraries provider providers command
	commands rule rules test tests child children parent container containers namespace address addresses route
	routes ring rings entry entries slot slots table tables memory worker workers writer writers
	requester responder sender receiver poster poller waiter listener handler handlers callback callbacks method
	methods function functions package packages value values number numbers one ones others those something anything
	nothing everything`)

// persons lists nouns for people.
var persons = set(`
	user users caller callers person persons people anyone everyone developer developers programmer programmers
	administrator administrators operator operators author authors contributor contributors maintainer maintainers
	attacker attackers owner owners root those reviewer reviewers reader readers implementer implementers`)

// bases lists verbs in the base form that can follow the object of a causative.
var bases = set(`
	wait wake fail run stop go pass sleep block be come look ask answer end begin start return find keep hold take
	grow fall leave stay see know send receive lose drop die live happen count belong close read write use make call
	post poll try access do fill choose decide serve run execute continue proceed share`)

// pures lists verbs in the base form that are not also nouns or adjectives.
var pures = set("wait fail sleep stop go be become come take keep lose fall happen know begin choose decide belong")

// irregular lists past forms and participles that do not end in "ed".
var irregular = set(`
	was were had did made done gone been begun began kept sent left lost told held given gave taken took found put set
	cut shut hit read run come came known knew seen saw shown written wrote got gotten built bound brought bought
	caught chosen chose drawn drew driven drove fallen fell felt forgotten forgot grown grew heard hidden hid laid
	lain led lent let meant met paid said sold shared slept slid spent split spread stood stolen struck sworn taught
	thought thrown threw understood woken woke worn won spoken spoke broken broke stuck sought swept undone`)

// notPast lists words that end in "ed" and are not past forms.
var notPast = set(`
	need feed seed speed exceed proceed succeed embed shed bleed breed heed weed indeed bed red hundred sacred unneed
	kindred wicked naked misfeed`)

// isPast reports whether a word is a past form or a participle.
func isPast(w string) bool {
	return irregular[w] || strings.HasSuffix(w, "ed") && !notPast[w]
}

// auxiliaries lists verbs without an ending in the third person, and forms of "to be".
var auxiliaries = set(`
	is are was were has have had does do did can cannot may might must shall should will would could isn't aren't
	doesn't don't hasn't won't can't wasn't weren't needs`)

// notVerbs lists words that end in "s" and are not verbs.
var notVerbs = set(`
	this its his hers theirs ours us thus plus less unless always perhaps besides across as whereas sometimes
	afterwards towards bytes bits times others ones is's yes previous various obvious basis status address process
	class access alias analysis bus ms ns us ios dns tls https os cms`)

// isVerb reports whether a word can be a verb in the third person.
func isVerb(w string) bool {
	if auxiliaries[w] {
		return true
	}
	return len(w) > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && !notVerbs[w]
}
