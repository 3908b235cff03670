package guard_directives

//verbena:receives // want "directive: receives belongs into the comment of a function"
var x = 1

//verbena:allow open // want "directive: an escape needs a reason of at least three words" "directive: unused escape"
func f() int { return x }
