"""Users, API tokens, roles in projects, and the audit log."""

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.utils import timezone


class UserManager(BaseUserManager["User"]):
    """Creates users. With `password` None a user can sign in with API tokens only."""

    def create_user(self, username: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(username=self.model.normalize_username(username), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, username: str, password: str | None = None, **fields: Any) -> "User":
        """Create a site admin. Used by `manage.py createsuperuser`, the way back in if every admin's password is
        lost."""
        return self.create_user(username, password, is_admin=True, **fields)


class User(AbstractBaseUser):
    """A person or program that signs in. `is_admin` holds for the whole site; roles in projects are memberships.
    Inactive users cannot sign in."""

    username = models.CharField(max_length=150, unique=True)
    email = models.EmailField(blank=True, default="")
    is_admin = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects = UserManager()
    USERNAME_FIELD = "username"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    def __str__(self) -> str:
        return self.username


class Role:
    """The roles inside a project, weakest first."""

    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"
    ORDER = (VIEWER, MEMBER, OWNER)

    @classmethod
    def is_at_least(cls, held: str | None, needed: str) -> bool:
        """Return whether the role `held` includes the rights of `needed`; False if `held` is None."""
        return held is not None and cls.ORDER.index(held) >= cls.ORDER.index(needed)


class Membership(models.Model):
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, default=Role.MEMBER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.ORDER), name="membership_role_known"),
        ]


class Token(models.Model):
    """An API token. Only the SHA-256 digest of its 256 random bits is stored; a secret that long needs no slow hash."""

    user = models.ForeignKey(User, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    # The first characters, shown in lists so that a leaked token can be identified.
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    is_read_only = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class SetupLink(models.Model):
    """A one-time link with which the first admin chooses a name and a password."""

    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    used_at = models.DateTimeField(null=True)


class ServiceTicket(models.Model):
    """A one-time ticket that signs a browser session in at a job's own host. Valid for a minute."""

    digest = models.CharField(max_length=64, unique=True)
    session_key = models.CharField(max_length=40)
    job_id = models.UUIDField()
    port = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now, db_index=True)


class AuditEntry(models.Model):
    """One change by a user: who changed which object, with the values before and after. Append-only."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=150)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    address = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    verb = models.CharField(max_length=64)
    object_type = models.CharField(max_length=32)
    object_name = models.CharField(max_length=150)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(fields=["object_type", "object_name"], name="audit_object")]
