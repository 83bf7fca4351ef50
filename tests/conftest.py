"""Settings that must hold before torch is imported by any test."""

from truedraft.config.threads import let_idle_threads_sleep

let_idle_threads_sleep()
