# What one does with this repository; each target runs a plain command, which can be typed as well.

CARGO ?= cargo
PREFIX ?= /usr/local
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
BINARY := target/release/cvmio

.PHONY: build demo test kill-test bench install clean packages test-packages

build: packages
	$(CARGO) build --release -p cvmio

# Puts a volume to work, then attacks it in every way that its host could. Leaves nothing behind.
demo: build
	$(SUDO) env HOME="$$HOME" ./$(BINARY) demo

# Every check; the last line counts them.
test: test-packages
	./scripts/test

# Kills the daemon under load so many times, and looks whether anything that it had acknowledged was lost. `make test` does 32 rounds.
ROUNDS ?= 300
kill-test: test-packages
	$(SUDO) env HOME="$$HOME" PATH="$$PATH" KILL_ROUNDS=$(ROUNDS) $(CARGO) test -p cvmio --test kill -- --nocapture

# What protection costs on the disk under DIR, and in memory.
DIR ?= .
bench: build
	./$(BINARY) bench volume --medium file --dir $(DIR)
	./$(BINARY) bench volume --medium memory

install: build
	$(if $(DESTDIR),,$(SUDO)) install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/cvmio

clean:
	$(CARGO) clean

# Installs what the build needs and this machine lacks (see scripts/packages), once.
packages:
	@./scripts/install-packages

# The same, and what the tests work with.
test-packages:
	@./scripts/install-packages packages packages-test
