// Package release tests what a release has: that two builds are the same, that the artefacts work in bare Debian 12 and
// 13 as they are, under Docker's default seccomp profile too, and that the published recipes do what they say. It is a
// module of its own, with dependencies that Verbena itself does not have.
//
//	make release-test
//
// With -short only the recipes are read. The rest needs root, mmdebstrap and a mirror of Debian, whose packages are
// kept below RELEASE_CACHE (default: ~/.cache/verbena/release). RELEASE_DIST names artefacts to test that are there
// already.
package release
